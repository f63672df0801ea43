// Package response is about when a request is served: within its filters, or after them, as watches are.
package response

import (
	"context"

	"k8s.io/apiserver/pkg/server/routine"
)

// AfterFilters calls serve after all filters of a request have returned, whose goroutine and stack are free
// then. It calls serve at once if the request has no such task, as requests with a time limit have none.
func AfterFilters(ctx context.Context, serve func()) {
	if task := routine.TaskFrom(ctx); task != nil {
		task.Func = serve
		return
	}
	serve()
}

// Follows reports whether the response to the request of ctx is served after its filters have returned.
func Follows(ctx context.Context) bool {
	task := routine.TaskFrom(ctx)
	return task != nil && task.Func != nil
}

// WhenServed calls done when the response to the request of ctx is complete. Call it
// after the handler has returned.
func WhenServed(ctx context.Context, done func()) {
	if !Follows(ctx) {
		done()
		return
	}
	task := routine.TaskFrom(ctx)
	serve := task.Func
	task.Func = func() {
		defer done()
		serve()
	}
}
