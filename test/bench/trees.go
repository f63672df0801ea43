package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/unforked/kcp/test/child"
)

// trees measures the creation and deletion of a tree of workspaces, and the memory after
// it. A stock server has no equivalent.
func trees(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(_ subject, s *server) error {
		defer s.stop()
		return b.tree(ctx, s)
	})
}

func (b *bench) tree(ctx context.Context, s *server) error {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	empty, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("tree of %d workspaces, %d below each", b.plan.tree, b.plan.children)
	made, err := b.plant(ctx, s, clients)
	if err != nil {
		return err
	}
	b.report.add(s.subject, of, "made: rate", perSecond, made.rate())
	b.report.addTime(s.subject, of, "made: p50", made.percentile(50))
	b.report.addTime(s.subject, of, "made: server CPU each", made.each(made.server))
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	full, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	highest := s.watchMemory(ctx)
	gone, err := s.load(ctx, clients[:1], 1, func(ctx context.Context, c *client, _ int) error {
		return fell(ctx, c, child.RootWorkspaces+"/"+treeName(0))
	})
	most, err2 := highest()
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	b.report.add(s.subject, of, "most memory while it was deleted", bytesUnit, most)
	b.report.addTime(s.subject, of, "deleted: all of it", gone.wall)
	b.report.addTime(s.subject, of, "deleted: server CPU each", gone.server/time.Duration(b.plan.tree))
	if err := child.Pause(ctx, 5*b.plan.settle); err != nil {
		return err
	}
	after, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		when string
		f    footprint
	}{{"before", empty}, {"with the tree", full}, {"after it was deleted", after}} {
		b.report.add(s.subject, of, "memory "+x.when, bytesUnit, x.f.memory)
		b.report.add(s.subject, of, "live heap "+x.when, bytesUnit, x.f.liveHeap)
		b.report.add(s.subject, of, "goroutines "+x.when, plainCount, x.f.goroutines)
	}
	return nil
}

func treeName(i int) string { return fmt.Sprint("tree-", i) }

// plant creates a tree of workspaces, one level after the other.
func (b *bench) plant(ctx context.Context, s *server, clients []*client) (sample, error) {
	var all sample
	at := make([]string, b.plan.tree) // the collection of workspaces in each
	for from, to := 0, 1; from < len(at); from, to = to, min(len(at), to*b.plan.children+1) {
		level, err := s.load(ctx, clients, to-from, func(ctx context.Context, c *client, i int) error {
			i += from
			parent := child.RootWorkspaces
			if i > 0 {
				parent = at[(i-1)/b.plan.children]
			}
			path, err := child.MakeWorkspace(ctx, c, parent, treeName(i))
			at[i] = path + child.WorkspacesPath
			return err
		})
		if err != nil {
			return all, err
		}
		all.merge(level)
	}
	return all, nil
}

// fell deletes the workspace at a path and returns when it no longer exists.
func fell(ctx context.Context, c *client, path string) error {
	if _, err := c.Call(ctx, http.MethodDelete, path, jsonType, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Minute, errors.New("a tree is not gone after ten minutes"))
	defer cancel()
	for {
		_, err := c.Call(ctx, http.MethodGet, path, jsonType, nil)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := child.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
