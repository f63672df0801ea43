package server

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp/internal/storage/etcd/space"
)

// setUpAgain is the delay after a step of the setup that etcd did not answer.
const setUpAgain = time.Second

// A setUpStep writes some of the objects that every server has. It may be repeated.
type setUpStep struct {
	what string // in errors, after a verb
	do   func(context.Context) error
	// whenFull is the message if etcd is full. If it is empty, the server does not start then.
	whenFull string
}

// setUp writes the objects that every server has. While etcd does not answer, it tries again.
func (s *Server) setUp(ctx context.Context) error {
	for _, step := range []setUpStep{
		{what: "set up the root workspace", do: s.workspaces.Bootstrap},
		{what: "announce this shard", do: s.workspaces.Announce,
			whenFull: "Cannot update the Shard; it has the addresses of the last start"},
		{what: "prepare the sharing of APIs", do: s.apis.Bootstrap},
		{what: "grant home workspaces", do: func(ctx context.Context) error { return s.workspaces.AllowHomes(ctx, s.config.Homes.Creators()) },
			whenFull: "Cannot change who may have a home workspace; the setting of the last start applies"},
	} {
		err := answered(ctx, step)
		if step.whenFull != "" && space.IsInsufficient(err) {
			klog.FromContext(ctx).Error(err, step.whenFull)
		} else if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

// answered takes a step until etcd answers, and returns the error of the last time.
func answered(ctx context.Context, step setUpStep) error {
	var err error
	ended := wait.PollUntilContextCancel(ctx, setUpAgain, true, func(ctx context.Context) (bool, error) {
		err = step.do(ctx)
		again := apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
		if again {
			klog.FromContext(ctx).Error(err, "Could not "+step.what+"; trying again")
		}
		return !again, nil
	})
	if err == nil {
		err = ended
	}
	return err
}
