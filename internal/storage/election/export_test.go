package election

import "context"

// LeaseSeconds is leaseSeconds.
const LeaseSeconds = leaseSeconds

// Candidates is the prefix of the keys of all candidates.
func (e *Election) Candidates() string { return e.candidates() }

// LeadOnce makes this process a candidate, once.
func (e *Election) LeadOnce(ctx context.Context, run func(context.Context)) error {
	return e.leadOnce(ctx, run)
}
