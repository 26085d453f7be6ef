"""Video: remember, carry along with the motion, look again only where it changed."""
