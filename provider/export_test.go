package provider

import "context"

// Follow makes p follow URLs as if they were in the endpoint slice, until it changes.
func (p *Provider) Follow(ctx context.Context, urls []string) { p.follow(ctx, urls) }
