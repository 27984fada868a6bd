"""The program that reads one host; standard library and nvidia-ml-py only."""
