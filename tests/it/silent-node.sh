#!/bin/sh
# Stands in for a node that starts and never tells its address.
echo "still thinking" >&2
exec sleep 60
