// The only source of every part in this project: nothing is built, only configured.
