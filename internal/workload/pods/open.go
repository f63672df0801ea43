package pods

import (
	"context"
	"fmt"

	"github.com/unforked/kcp/internal/workload/answers"
)

// begin opens a request to the target of a part. The caller must call end.
func (p *Pods) begin(ctx context.Context, of *part) (*call, error) {
	return p.beginFor(ctx, of, p.results(of.workspace))
}

// beginFor opens a request to the target of a part, whose answers are for results. The caller must call end.
func (p *Pods) beginFor(ctx context.Context, of *part, to *answers.Results) (*call, error) {
	leave, err := p.limits.enter(calling(of.workspace.cluster), called(of.workspace.compute, p.tenant(of.workspace.cluster)))
	if err != nil {
		return nil, &refusal{fmt.Sprintf("Location %q has too many open requests for pods", of.Location)}
	}
	c := &call{part: of, leave: leave, budget: to.Budget()}
	if err := p.open(ctx, c); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// link returns the way to the target of a part.
func (p *Pods) link(ctx context.Context, of *part) (*Link, error) {
	// It reads from this server, which would log an error for a request that is given up.
	l, err := p.reach(context.WithoutCancel(ctx), of.workspace.compute, of.target)
	if err != nil {
		return nil, of.unreachable(ctx, err)
	}
	return &Link{l.Server, waiting{l.Through}}, nil
}

// open reaches the target of a call, and looks whether it has the namespace.
func (p *Pods) open(ctx context.Context, c *call) error {
	if c.target.Status.UnreachableSince != nil {
		return &refusal{fmt.Sprintf("Location %q does not answer", c.Location)}
	}
	var err error
	if c.link, err = p.link(ctx, c.part); err != nil {
		return err
	}
	core, err := c.link.client(c.budget)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if c.exists, err = c.verify(ctx, core); err != nil {
		return c.unreachable(ctx, err)
	}
	c.budget.Release()
	c.pods, c.events = core.Pods(c.Physical), core.Events(c.Physical)
	return nil
}
