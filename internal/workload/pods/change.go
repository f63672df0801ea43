package pods

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// deletion translates the options of a deletion of the pod with a UID.
func (c *call) deletion(o *metav1.DeleteOptions, uid types.UID, name string) (*metav1.DeleteOptions, error) {
	there := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if o == nil {
		return there, nil
	}
	there.GracePeriodSeconds, there.DryRun = o.GracePeriodSeconds, o.DryRun
	return there, c.precondition(o.Preconditions, there, name)
}

// precondition translates the preconditions of a deletion.
func (c *call) precondition(of *metav1.Preconditions, to *metav1.DeleteOptions, name string) error {
	if of == nil {
		return nil
	}
	if of.UID != nil && *of.UID != *to.Preconditions.UID {
		return apierrors.NewConflict(core.Resource("pods"), name, fmt.Errorf("the UID in the precondition is %s, that of the pod is %s", *of.UID, *to.Preconditions.UID))
	}
	if of.ResourceVersion != nil {
		v, err := shown.ParseVersions(*of.ResourceVersion)
		if err != nil {
			return err
		}
		if at, ok := v.At(c.Key); ok {
			to.Preconditions.ResourceVersion = new(strconv.FormatUint(at, 10))
		} else {
			return apierrors.NewConflict(core.Resource("pods"), name, errors.New("the resource version in the precondition is not one of this pod"))
		}
	}
	return nil
}

// answered returns what a target says about a change of a pod: that a disruption budget does not allow
// it, or that it is invalid. All else means that the target cannot do it.
func (c *call) answered(ctx context.Context, err error) error {
	var of apierrors.APIStatus
	if !errors.As(err, &of) || !apierrors.IsTooManyRequests(err) && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return apierrors.NewServiceUnavailable(c.unreachable(ctx, err).Error())
	}
	shown := func(text string) string {
		return c.Text(text)
	}
	s := of.Status()
	own := metav1.Status{Status: metav1.StatusFailure, Code: s.Code, Reason: s.Reason, Message: shown(s.Message)}
	if s.Details != nil {
		own.Details = &metav1.StatusDetails{Kind: s.Details.Kind, Name: s.Details.Name, RetryAfterSeconds: s.Details.RetryAfterSeconds}
		for _, cause := range s.Details.Causes {
			cause.Message = shown(cause.Message)
			own.Details.Causes = append(own.Details.Causes, cause)
		}
	}
	return &apierrors.StatusError{ErrStatus: own}
}
