"""The files of the web dashboard: ES modules and style sheets that a browser loads as they are."""
