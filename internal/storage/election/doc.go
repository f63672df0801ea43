// Package election hides how the processes on one etcd agree who runs the loops, and that a process
// which lost the election cannot write any more. Processes also find each other here: each announces
// itself for as long as it lives.
package election
