/* Functions that are never right here: a use is a compile error. */
#pragma GCC poison strcpy strcat sprintf vsprintf strtok gets strncpy
