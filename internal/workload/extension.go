// Package workload runs what is applied to workspaces on physical clusters. It is an extension of
// package kcp: nothing of the core knows it.
package workload

import (
	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/fleet"
)

// Extension returns the extension of a server.
func Extension() kcp.Extension {
	return fleet.Extension(fleet.Options{})
}
