package connections

import (
	"net"

	"golang.org/x/net/netutil"
)

// reservedFiles is the number of open files that clients leave to the server. It is more than the
// server needs for etcd, and for the calls of webhooks and mounted workspaces.
const reservedFiles = 8192

// Limit returns a listener with a limited number of open connections. Further clients wait until
// a connection is closed. Without a limit, clients could use up the open files of the process,
// and the embedded etcd exits if it cannot open a file.
func Limit(l net.Listener) net.Listener {
	files, ok := maxFiles()
	if !ok {
		return l
	}
	return netutil.LimitListener(l, maxConnections(files))
}

// maxConnections returns the maximum number of connections of a process that may open a number
// of files.
func maxConnections(files uint64) int { return int(min(files-min(files/2, reservedFiles), 1<<20)) }
