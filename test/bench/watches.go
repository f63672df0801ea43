package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/unforked/kcp/test/child"
)

// watches measures the cost of one more watch, with one tenant and one connection per
// watch. It also measures the latency of an event, without and with all other watches.
func watches(ctx context.Context, b *bench) error {
	for _, subject := range b.subjects {
		s, err := b.fresh(ctx, subject, true)
		if err != nil {
			return err
		}
		err = b.watch(ctx, s)
		s.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", subject.name(), err)
		}
	}
	return nil
}

func (b *bench) watch(ctx context.Context, s *server) error {
	clients, err := child.Connect(ctx, s.user, b.plan.clients)
	if err != nil {
		return err
	}
	defer child.CloseAll(clients)
	tenants := make([]tenant, b.plan.watches)
	if _, err := s.load(ctx, clients, len(tenants), func(ctx context.Context, c *client, i int) (err error) {
		tenants[i], err = s.newTenant(ctx, c, fmt.Sprintf("watched-%d", i))
		return err
	}); err != nil {
		return err
	}
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	before, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	of := fmt.Sprintf("one more watch in a tenant of its own, of %d", len(tenants))
	if err := b.deliver(ctx, s, clients[0], tenants[0], "event to its watcher, no other watches"); err != nil {
		return err
	}
	var open []*watcher
	defer func() {
		for _, w := range open {
			w.close()
		}
	}()
	for _, t := range tenants {
		w, err := startWatch(ctx, s, t)
		if err != nil {
			return err
		}
		open = append(open, w)
	}
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return err
	}
	after, err := s.footprint(ctx)
	if err != nil {
		return err
	}
	n := float64(len(tenants))
	b.report.add(s.subject, of, "memory, with its connection", bytesUnit, (after.memory-before.memory)/n)
	b.report.add(s.subject, of, "live heap, with its connection", bytesUnit, (after.liveHeap-before.liveHeap)/n)
	b.report.add(s.subject, of, "goroutines", plainCount, (after.goroutines-before.goroutines)/n)
	return b.deliver(ctx, s, clients[0], tenants[0], fmt.Sprintf("event to its watcher, %d watches elsewhere", len(tenants)-1))
}

// deliver measures the time from the start of a write to the arrival of its event.
func (b *bench) deliver(ctx context.Context, s *server, c *client, t tenant, of string) error {
	name := fmt.Sprintf("event-%d", len(of))
	if err := b.create(ctx, c, t.configMaps, name); err != nil {
		return err
	}
	w, err := startWatch(ctx, s, t)
	if err != nil {
		return err
	}
	defer w.close()
	x, err := s.load(ctx, []*client{c}, b.plan.lists, func(ctx context.Context, c *client, i int) error {
		word := fmt.Sprintf("at-%d-%d.", len(of), i)
		if err := b.update(ctx, c, t.configMaps+"/"+name, word); err != nil {
			return err
		}
		return w.await(word)
	})
	if err != nil {
		return err
	}
	b.report.addTime(s.subject, of, "p50", x.percentile(50))
	b.report.addTime(s.subject, of, "p99", x.percentile(99))
	b.report.addTime(s.subject, of, "server CPU each", x.each(x.server))
	return nil
}

// watcher is a watch of the config maps of a tenant.
type watcher struct {
	client *client
	body   io.ReadCloser
	events chan string // lines as they come; those that nobody awaits are dropped
	ended  sync.WaitGroup
}

func startWatch(ctx context.Context, s *server, t tenant) (*watcher, error) {
	return startWatchAt(ctx, s, t.configMaps)
}

func startWatchAt(ctx context.Context, s *server, path string) (*watcher, error) {
	c, err := child.NewClient(s.user)
	if err != nil {
		return nil, err
	}
	body, err := c.Stream(ctx, path+"?watch=1&allowWatchBookmarks=false")
	if err != nil {
		c.Close()
		return nil, err
	}
	w := &watcher{client: c, body: body, events: make(chan string, 64)}
	w.ended.Go(func() {
		defer close(w.events)
		lines := bufio.NewReader(body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			select {
			case w.events <- line:
			default:
			}
		}
	})
	return w, nil
}

// await returns when an event that contains the word arrives.
func (w *watcher) await(word string) error {
	timeout := time.NewTimer(time.Minute)
	defer timeout.Stop()
	for {
		select {
		case line, ok := <-w.events:
			switch {
			case !ok:
				return errors.New("the watch has ended")
			case strings.Contains(line, word):
				return nil
			}
		case <-timeout.C:
			return fmt.Errorf("no event with %q after a minute", word)
		}
	}
}

func (w *watcher) close() {
	_ = w.body.Close() // nothing more is read
	w.ended.Wait()
	w.client.Close()
}
