package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/unforked/kcp/test/child"
)

const (
	// restartTenants are the workspaces that share the data. One alone may not write as fast.
	restartTenants = 100
	kibibyte       = 1 << 10
	mebibyte       = 1 << 20
)

// dataSize returns the bytes of the i-th object. In the mix, one of 20 is large, four are of
// medium size and the others are small. Large and medium ones have most of the bytes.
func (p *plan) dataSize(i int) int {
	switch {
	case p.object > 0:
		return p.object
	case i%20 == 0:
		return 500 * kibibyte
	case i%5 == 1:
		return 50 * kibibyte
	default:
		return 10 * kibibyte
	}
}

// restarts measures the memory that a server needs to start with much data: half of the
// bytes are config maps, half custom resources. A stock server is not measured, as its etcd
// is a process of its own.
func restarts(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(kcp subject, s *server) error {
		stored, err := b.fillUp(ctx, s)
		s.stop()
		if err != nil {
			return err
		}
		return b.restart(ctx, kcp, s.dir, stored)
	})
}

// fillUp writes data and returns how many bytes the database uses.
func (b *bench) fillUp(ctx context.Context, s *server) (float64, error) {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return 0, err
	}
	defer child.CloseAll(clients)
	maps, customs := b.configMap(), b.customResource()
	tenants := make([]tenant, min(restartTenants, b.plan.data))
	_, err = spread(ctx, clients, len(tenants), func(ctx context.Context, c *client, i int) error {
		t, err := s.newTenant(ctx, c, fmt.Sprint("restart-", i))
		tenants[i] = t
		return errors.Join(err, customs.prepare(ctx, c, t))
	})
	if err != nil {
		return 0, err
	}
	objects := 0
	for bytes := 0; bytes < b.plan.data*mebibyte; objects++ {
		bytes += b.plan.dataSize(objects / 2)
	}
	_, err = spread(ctx, clients, objects, func(ctx context.Context, c *client, i int) error {
		name, size, at := fmt.Sprint("data-", i), b.plan.dataSize(i/2), tenants[i/2%len(tenants)]
		var body []byte
		var err error
		k := maps
		if i%2 == 0 {
			body, err = b.encoding.configMap(name, "data", size)
		} else {
			k = customs
			body, err = customObject(customGroup, name, "data", size)
		}
		if err != nil {
			return err
		}
		collection, _ := k.in(at)
		_, err = c.Call(ctx, http.MethodPost, collection, k.media, body)
		return err
	})
	if err != nil {
		return 0, err
	}
	f, err := s.footprint(ctx)
	return f.stored, err
}

// restart starts a server on the data and reports its memory.
func (b *bench) restart(ctx context.Context, subject subject, dir string, stored float64) error {
	s, err := subject.start(ctx, dir, true)
	if err != nil {
		return err
	}
	defer s.stop()
	of := fmt.Sprintf("restart with %d MiB of data", b.plan.data)
	b.report.add(s.subject, of, "etcd", bytesUnit, stored)
	b.report.addTime(s.subject, of, "to ready", s.took)
	for _, when := range []string{"until ready", "until settled"} {
		var most float64
		for _, p := range s.measured {
			n, err := p.MostMemory()
			if err != nil {
				return err
			}
			most += n
		}
		b.report.add(s.subject, of, "most memory with mapped files "+when, bytesUnit, most)
		b.report.add(s.subject, of, "ratio to etcd "+when, plainCount, most/stored)
		if when == "until settled" {
			break
		}
		if err := child.Pause(ctx, b.plan.settle); err != nil {
			return err
		}
	}
	f, err := s.footprint(ctx)
	b.report.add(s.subject, of, "memory when settled", bytesUnit, f.memory)
	b.report.add(s.subject, of, "live heap when settled", bytesUnit, f.liveHeap)
	return err
}
