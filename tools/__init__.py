"""Development tools of this repository; they are not part of the installed packages."""
