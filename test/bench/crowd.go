package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/unforked/kcp/test/child"
)

// crowds measures the memory of a server with many workspaces, and the time until it is
// ready after a restart. A stock server would need hours for as many namespaces, so it is
// not measured.
func crowds(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(kcp subject, s *server) error {
		err := b.crowd(ctx, s)
		s.stop()
		if err != nil {
			return err
		}
		return b.comeback(ctx, kcp, s.dir)
	})
}

func crowdName(i int) string { return fmt.Sprint("crowd-", i) }

func (b *bench) crowdOf() string { return fmt.Sprintf("%d workspaces", b.plan.crowd) }

// crowd creates the workspaces, all below root.
func (b *bench) crowd(ctx context.Context, s *server) error {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	highest := s.watchMemory(ctx)
	made, err := s.load(ctx, clients, b.plan.crowd, func(ctx context.Context, c *client, i int) error {
		_, err := s.newTenant(ctx, c, crowdName(i))
		return err
	})
	most, err2 := highest()
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	b.report.add(s.subject, b.crowdOf(), "made: rate", perSecond, made.rate())
	b.report.addTime(s.subject, b.crowdOf(), "made: server CPU each", made.each(made.server))
	b.report.add(s.subject, b.crowdOf(), "most memory while they were made", bytesUnit, most)
	return b.reportCrowd(ctx, s, "")
}

// reportCrowd waits for the settle time and reports the memory of the server.
func (b *bench) reportCrowd(ctx context.Context, s *server, when string) error {
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	f, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	b.report.add(s.subject, b.crowdOf(), "memory"+when, bytesUnit, f.memory)
	b.report.add(s.subject, b.crowdOf(), "live heap"+when, bytesUnit, f.liveHeap)
	b.report.add(s.subject, b.crowdOf(), "goroutines"+when, plainCount, f.goroutines)
	b.report.add(s.subject, b.crowdOf(), "etcd"+when, bytesUnit, f.stored)
	return nil
}

// comeback starts a server on the data of a stopped one.
func (b *bench) comeback(ctx context.Context, subject subject, dir string) error {
	s, err := subject.start(ctx, dir, true)
	if err != nil {
		return err
	}
	defer s.stop()
	cpu, err := sumCPU(s.measured)
	if err != nil {
		return err
	}
	clients, err := child.Connect(ctx, s.user, 1)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	begin := time.Now()
	if _, err := clients[0].Call(ctx, http.MethodGet, child.RootWorkspaces+"/"+crowdName(b.plan.crowd-1), jsonType, nil); err != nil {
		return err
	}
	b.report.addTime(s.subject, b.crowdOf(), "restart to ready", s.took)
	b.report.addTime(s.subject, b.crowdOf(), "restart: CPU until ready", cpu)
	b.report.addTime(s.subject, b.crowdOf(), "restart: first request", time.Since(begin))
	return b.reportCrowd(ctx, s, " after a restart")
}
