package server

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A step of the setup is repeated while etcd does not answer, and only then.
func TestSetUpIsRepeated(t *testing.T) {
	t.Parallel() // it waits
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		answers []error
		want    error
	}{
		"etcd is slow":            {answers: []error{apierrors.NewTimeoutError("slow", 1), nil}},
		"etcd is away":            {answers: []error{apierrors.NewServiceUnavailable("away"), refused}, want: refused},
		"another error, at once":  {answers: []error{refused}, want: refused},
		"no error, at first call": {answers: []error{nil}},
	} {
		var calls int
		err := answered(t.Context(), setUpStep{what: "test", do: func(context.Context) error {
			calls++
			return c.answers[calls-1]
		}})
		if !errors.Is(err, c.want) || calls != len(c.answers) {
			t.Errorf("%s: %v after %d calls", name, err, calls)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	slow := apierrors.NewTimeoutError("slow", 1)
	if err := answered(ctx, setUpStep{what: "test", do: func(context.Context) error { cancel(); return slow }}); !errors.Is(err, slow) {
		t.Errorf("the start is cancelled while etcd is slow: %v", err)
	}
}
