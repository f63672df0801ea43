// Package limits refuses writes for which too much is stored already: by ResourceQuotas, and by the
// limits of workspaces. It hides how several processes on one etcd stay exact without a read for
// each write.
package limits
