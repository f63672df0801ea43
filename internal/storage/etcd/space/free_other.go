//go:build !linux && !darwin

package space

import "errors"

// Free returns an error: the free space is unknown, and the disk level stays spacious.
func Free(string) (int64, error) { return 0, errors.ErrUnsupported }
