package main

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// accounts reports when the default service account of a namespace exists. It uses one
// watch for all namespaces. Polling, or one watch per namespace, would load the server
// and distort the measurement.
type accounts struct {
	events watch.Interface
	ended  sync.WaitGroup

	mu      sync.Mutex
	seen    map[string]bool         // guarded by mu
	waiting map[string][]chan error // guarded by mu
	err     error                   // guarded by mu; set when the watch has ended
}

func watchAccounts(ctx context.Context, config *rest.Config) (*accounts, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	events, err := c.CoreV1().ServiceAccounts("").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=default"})
	if err != nil {
		return nil, err
	}
	a := &accounts{events: events, seen: map[string]bool{}, waiting: map[string][]chan error{}}
	a.ended.Go(a.run)
	return a, nil
}

func (a *accounts) run() {
	for e := range a.events.ResultChan() {
		if account, ok := e.Object.(*corev1.ServiceAccount); ok && e.Type == watch.Added {
			a.mu.Lock()
			a.seen[account.Namespace] = true
			for _, c := range a.waiting[account.Namespace] {
				c <- nil
			}
			delete(a.waiting, account.Namespace)
			a.mu.Unlock()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = errors.New("the watch of service accounts has ended")
	for _, cs := range a.waiting {
		for _, c := range cs {
			c <- a.err
		}
	}
}

// wait returns a channel that receives nil when the account exists, or an error if the
// watch has ended.
func (a *accounts) wait(namespace string) <-chan error {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan error, 1) // nobody may be reading when the account comes
	switch {
	case a.err != nil:
		c <- a.err
	case a.seen[namespace]:
		c <- nil
	default:
		a.waiting[namespace] = append(a.waiting[namespace], c)
	}
	return c
}

// close ends the watch and returns when its goroutine has ended.
func (a *accounts) close() {
	a.events.Stop()
	a.ended.Wait()
}
