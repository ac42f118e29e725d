"""Reports: values in, text out. No files, no clock, no environment; printing is the command line's business."""
