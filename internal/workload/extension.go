// Package workload runs the workloads of workspaces on physical clusters. It is an extension of
// package kcp, which the core does not import.
package workload

import (
	"time"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/fleet"
)

// GracePeriod is the time without an answer after which a physical cluster is unreachable by default.
const GracePeriod = 40 * time.Second

// Extension returns the extension of a server that takes physical clusters for unreachable after a grace
// period. It probes them four times as often.
func Extension(grace time.Duration) kcp.Extension {
	return fleet.Extension(fleet.Options{Renew: grace / 4, Expire: grace})
}
