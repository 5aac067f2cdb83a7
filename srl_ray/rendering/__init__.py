"""Pictures and videos of episodes, drawn in software: no display, no OpenGL."""
