package store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// glance is how long one server may take for the answer to a small read, before
	// another one is asked, and glances how many are asked.
	glance  = 2 * time.Second
	glances = 3
	// brief is how long everything else may take, but for answers with many objects.
	brief = 6 * time.Second
	long  = 30 * time.Second
)

// patient talks to an etcd that may not answer. Every request ends in bounded time,
// and what it ends with is an error that clients of the API understand.
type patient struct{ kv clientv3.KV }

var _ clientv3.KV = patient{}

// Get implements [clientv3.KV].
func (p patient) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, err := p.Do(ctx, clientv3.OpGet(key, opts...))
	return r.Get(), err
}

// Put implements [clientv3.KV].
func (p patient) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, err := p.Do(ctx, clientv3.OpPut(key, value, opts...))
	return r.Put(), err
}

// Delete implements [clientv3.KV].
func (p patient) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	r, err := p.Do(ctx, clientv3.OpDelete(key, opts...))
	return r.Del(), err
}

// Compact implements [clientv3.KV].
func (p patient) Compact(ctx context.Context, rev int64, opts ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	return p.kv.Compact(ctx, rev, opts...)
}

// Txn implements [clientv3.KV].
func (p patient) Txn(ctx context.Context) clientv3.Txn { return &patientTxn{ctx: ctx, by: p} }

// Do implements [clientv3.KV].
func (p patient) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if !op.IsGet() {
		return p.once(ctx, op, brief, changes(op))
	}
	if len(op.RangeBytes()) > 0 && !op.IsCountOnly() {
		return p.once(ctx, op, long, false)
	}
	for n := 1; ; n++ {
		began := time.Now()
		r, err := p.once(ctx, op, glance, false)
		if err == nil || n == glances || ctx.Err() != nil || time.Since(began) < glance {
			return r, err // which is final, unless a server hangs
		}
	}
}

// changes reports whether op may change anything.
func changes(op clientv3.Op) bool {
	if !op.IsTxn() {
		return op.IsPut() || op.IsDelete()
	}
	_, then, alse := op.Txn()
	return slices.ContainsFunc(then, changes) || slices.ContainsFunc(alse, changes)
}

func (p patient) once(ctx context.Context, op clientv3.Op, limit time.Duration, writes bool) (clientv3.OpResponse, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := p.kv.Do(bounded, op)
	if err != nil && ctx.Err() == nil {
		err = answer(err, writes)
	}
	return r, err
}

// patientTxn collects a transaction for [patient.Do].
type patientTxn struct {
	ctx        context.Context // clientv3.Txn has it so
	by         patient
	compares   []clientv3.Cmp
	then, alse []clientv3.Op
}

// If implements [clientv3.Txn].
func (t *patientTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.compares = append(t.compares, cs...)
	return t
}

// Then implements [clientv3.Txn].
func (t *patientTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.then = append(t.then, ops...)
	return t
}

// Else implements [clientv3.Txn].
func (t *patientTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.alse = append(t.alse, ops...)
	return t
}

// Commit implements [clientv3.Txn].
func (t *patientTxn) Commit() (*clientv3.TxnResponse, error) {
	r, err := t.by.Do(t.ctx, clientv3.OpTxn(t.compares, t.then, t.alse))
	return r.Txn(), err
}

// answer turns an error of etcd into what clients of the API are answered. Errors
// that are not about its state stay as they are.
func answer(err error, writes bool) error {
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return noSpace("full")
	case errors.Is(err, rpctypes.ErrRequestTooLarge):
		return apierrors.NewRequestEntityTooLargeError("etcd takes no request as large as this one")
	case !isOutage(err):
		return err
	case writes && !unsent(err):
		return apierrors.NewTimeoutError(fmt.Sprintf("the database did not answer, and the write may have been made or not: %v; look, and try again", reason(err)), 0)
	}
	return unavailable(fmt.Sprintf("the database does not answer: %v; try again", reason(err)))
}

// unavailable is the answer to a request that was not served, and can be repeated.
func unavailable(why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable,
		Message: why, Details: &metav1.StatusDetails{RetryAfterSeconds: 1},
	}}
}

// isOutage reports whether err tells that etcd cannot be reached, or has no quorum.
func isOutage(err error) bool {
	var known rpctypes.EtcdError
	code := codes.Unknown
	if errors.As(err, &known) {
		code = known.Code()
	} else if s, ok := grpcstatus.FromError(err); ok {
		code = s.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, rpctypes.ErrTooManyRequests)
}

// unsent reports whether a request that failed with err cannot have had any effect.
func unsent(err error) bool {
	if errors.Is(err, rpctypes.ErrNoLeader) || errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "Error while dialing") || strings.Contains(text, "no connection available") || strings.Contains(text, "no address available")
}

// told has the errors of an etcd in this process, which always answers, tell clients of
// the API what they are to know.
type told struct{ clientv3.KV }

// Txn implements [clientv3.KV].
func (t told) Txn(ctx context.Context) clientv3.Txn { return toldTxn{t.KV.Txn(ctx)} }

type toldTxn struct{ txn clientv3.Txn }

// If implements [clientv3.Txn].
func (t toldTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return toldTxn{t.txn.If(cs...)} }

// Then implements [clientv3.Txn].
func (t toldTxn) Then(ops ...clientv3.Op) clientv3.Txn { return toldTxn{t.txn.Then(ops...)} }

// Else implements [clientv3.Txn].
func (t toldTxn) Else(ops ...clientv3.Op) clientv3.Txn { return toldTxn{t.txn.Else(ops...)} }

// Commit implements [clientv3.Txn].
func (t toldTxn) Commit() (*clientv3.TxnResponse, error) {
	r, err := t.txn.Commit()
	if errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		err = answer(err, true)
	}
	return r, err
}
