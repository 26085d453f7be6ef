"""The reader: a small vision-language model of our own, trained to read receipts and simple documents."""
