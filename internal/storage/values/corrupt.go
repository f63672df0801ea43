package values

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// A corruptError is the error of a stored value that no server can ever read, whatever
// keys it has. All other errors of reading a value may pass: a key service becomes
// available again, a missing key is configured, a newer program knows the version.
type corruptError struct{ err error }

func (e corruptError) Error() string { return e.err.Error() }
func (e corruptError) Unwrap() error { return e.err }

// corrupt marks the error of a value that no server can ever read. It keeps nil.
func corrupt(err error) error {
	if err == nil {
		return nil
	}
	return corruptError{err}
}

// corruptUnlessNewer is corrupt for the error of a codec. A version that is not
// registered in this program may be registered in a newer one.
func corruptUnlessNewer(err error) error {
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		if runtime.IsNotRegisteredError(cause) {
			return err
		}
	}
	return corrupt(err)
}

// IsCorrupt reports whether an error says that a stored value can never be read. Any
// other error of reading a value may pass: the object must not be treated as if it did
// not exist, or as if it had no finalizers and owners.
func IsCorrupt(err error) bool {
	var c corruptError
	return errors.As(err, &c)
}

// ErrUnreadable is the error of a value that cannot be read now. See [Kind.Renew].
var ErrUnreadable = errors.New("cannot be read now")

// unreadable marks an error of reading a value, unless the value is corrupt.
func unreadable(err error) error {
	if IsCorrupt(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}
