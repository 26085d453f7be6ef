"""A vision-language model that reads only the visual tokens it needs."""
