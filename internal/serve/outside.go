package serve

import "context"

type outsideKey struct{}

// WithOutside returns a context for a request that has begin called before it is served
// by a handler that asks somebody outside, who takes his time: a webhook that converts.
// If begin fails, its error is the answer.
func WithOutside(ctx context.Context, begin func() error) context.Context {
	return context.WithValue(ctx, outsideKey{}, begin)
}

func beginOutside(ctx context.Context) error {
	if begin, ok := ctx.Value(outsideKey{}).(func() error); ok {
		return begin()
	}
	return nil
}
