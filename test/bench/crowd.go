package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// crowds measures a server that has many workspaces: what it takes in memory, and how
// soon it is ready again after it was stopped. A stock server makes as many namespaces
// in hours, and is not measured.
func crowds(ctx context.Context, b *bench) error {
	for _, subject := range b.subjects {
		if subject.name() != "kcp" {
			continue
		}
		s, err := b.fresh(ctx, subject, true)
		if err != nil {
			return err
		}
		err = b.crowd(ctx, s)
		s.stop()
		if err == nil {
			err = b.comeback(ctx, subject, s.dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func crowdName(i int) string { return fmt.Sprint("crowd-", i) }

func (b *bench) crowdOf() string { return fmt.Sprintf("%d workspaces", b.plan.crowd) }

// crowd makes the workspaces, all below root.
func (b *bench) crowd(ctx context.Context, s *server) error {
	clients, err := connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer closeAll(clients)
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

// reportCrowd reports the memory of a server that has the workspaces, once it has
// settled.
func (b *bench) reportCrowd(ctx context.Context, s *server, when string) error {
	if err := pause(ctx, b.plan.settle); err != nil {
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

// comeback starts a server on the data of one that has stopped.
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
	clients, err := connect(ctx, s.user, 1)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	begin := time.Now()
	if _, err := clients[0].call(ctx, http.MethodGet, workspaces+"/"+crowdName(b.plan.crowd-1), jsonType, nil); err != nil {
		return err
	}
	b.report.addTime(s.subject, b.crowdOf(), "restart to ready", s.took)
	b.report.addTime(s.subject, b.crowdOf(), "restart: CPU until ready", cpu)
	b.report.addTime(s.subject, b.crowdOf(), "restart: first request", time.Since(begin))
	return b.reportCrowd(ctx, s, " after a restart")
}
