package space

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The 507 has a reason that differs from that of an internal error.
func TestReasonOfFull(t *testing.T) {
	for _, err := range []error{Full(), noDisk()} {
		var s *apierrors.StatusError
		if !IsInsufficient(err) || !errors.As(err, &s) || s.ErrStatus.Code != 507 {
			t.Errorf("%v: %q", err, apierrors.ReasonForError(err))
		}
	}
}
