//go:build !linux && !darwin

package etcd

import "errors"

// freeSpace returns an error: the free space is unknown, and the disk level stays spacious.
func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
