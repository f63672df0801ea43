//go:build !linux && !darwin

package etcd

import "errors"

// FreeSpace returns an error: the free space is unknown, and the disk level stays spacious.
func FreeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
