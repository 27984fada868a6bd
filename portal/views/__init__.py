"""Pages: parse a form, call one service or selector, render."""
