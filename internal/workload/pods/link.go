package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/answers"
	"github.com/unforked/kcp/internal/workload/pods/shown"
)

// A Link is a way to the API server of a physical cluster.
type Link struct {
	// Server is the URL of the API server.
	Server *url.URL
	// Through sends requests to it, and adds credentials. It follows no redirects. If a connection
	// is upgraded, the body of the response is an [io.ReadWriteCloser].
	Through http.RoundTripper
}

// A Reach returns the way to the physical cluster of a SyncTarget. It is called for each request,
// and on every server. It does not wait for the physical cluster.
type Reach func(ctx context.Context, compute kcp.ClusterName, t *workload.SyncTarget) (*Link, error)

// A refusal is an error whose text may be shown to the tenant.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// waiting is a transport to a physical cluster, which may take long or never answer. The request of the
// tenant takes no processor meanwhile.
type waiting struct{ through http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (w waiting) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	kcp.Wait(req.Context(), func() { resp, err = w.through.RoundTrip(req) })
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = waitingBody{resp.Body, req.Context()}
	}
	return resp, err
}

type waitingBody struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // of the request
}

// Read implements [io.Reader].
func (b waitingBody) Read(p []byte) (n int, err error) {
	kcp.Wait(b.ctx, func() { n, err = b.ReadCloser.Read(p) })
	return n, err
}

// unreachable returns an error for the tenant, which does not reveal the target.
func (p *part) unreachable(ctx context.Context, err error) error {
	klog.FromContext(ctx).V(2).Info("a physical cluster does not answer a request for pods", "cluster", p.workspace.compute, "target", p.target.Name, "err", err)
	var own *refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, answers.ErrNotJSON):
		return &refusal{fmt.Sprintf("the physical cluster of Location %q answers with something else than JSON", p.Location)}
	case errors.Is(err, answers.ErrBusy):
		return &refusal{fmt.Sprintf("Location %q has too much to answer; try again", p.Location)}
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return &refusal{fmt.Sprintf("the physical cluster of Location %q does not let this server read there what is asked for", p.Location)}
	}
	return &refusal{fmt.Sprintf("Location %q does not answer", p.Location)}
}

// client returns a client for a target, whose answers weigh at most as much as the budget has.
func (l *Link) client(b *answers.Budget) (typed.CoreV1Interface, error) {
	return typed.NewForConfigAndClient(&rest.Config{
		Host: l.Server.String(), QPS: -1,
		ContentConfig: rest.ContentConfig{AcceptContentTypes: runtime.ContentTypeJSON, ContentType: runtime.ContentTypeJSON},
	}, &http.Client{Transport: answers.Limited{Through: l.Through, Budget: b}})
}

// verify checks that the namespace at the target is that of the workspace, and of no other tenant.
// It reports false if there is none.
func (p *part) verify(ctx context.Context, c typed.CoreV1Interface) (bool, error) {
	ns, err := c.Namespaces().Get(ctx, p.Physical, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && p.locator().Made(ns), err
}

// a call is an open request to a target.
type call struct {
	*part
	link   *Link
	pods   typed.PodInterface
	events typed.EventInterface
	exists bool // the namespace
	budget *answers.Budget
	leave  func()
}

func (c *call) end() {
	c.budget.End()
	c.leave()
}

// sent ends a call whose answer becomes the response to the request of ctx. It weighs until that has been sent.
func (c *call) sent(ctx context.Context) {
	c.budget.Settle()
	c.leave()
	kcp.WhenServed(ctx, c.budget.End)
}

// list lists the pods of a part, and returns the resource version of the list. keep gets them page by page, and returns
// the weight of what it keeps.
func (c *call) list(ctx context.Context, o metav1.ListOptions, keep func([]corev1.Pod) (int64, error)) (version string, err error) {
	version, more, err := c.paged(ctx, o, mostPods, func(ctx context.Context, o metav1.ListOptions, left int) (metav1.ListInterface, int, int64, error) {
		page, err := c.pods.List(ctx, o)
		if err != nil || len(page.Items) > left {
			return page, left + 1, 0, err
		}
		weight, err := keep(page.Items)
		return page, len(page.Items), weight, err
	})
	if more {
		err = &refusal{fmt.Sprintf("Location %q has more than %d pods of a namespace; they are not listed", c.Location, mostPods)}
	}
	return version, err
}

// listEvents returns the events of a part, the resource version of the list, and whether there are more.
func (c *call) listEvents(ctx context.Context, o metav1.ListOptions) (all []corev1.Event, version string, more bool, err error) {
	version, more, err = c.paged(ctx, o, mostEvents, func(ctx context.Context, o metav1.ListOptions, left int) (metav1.ListInterface, int, int64, error) {
		page, err := c.events.List(ctx, o)
		if err != nil {
			return nil, 0, 0, err
		}
		weight := int64(0)
		for i := range page.Items[:min(left, len(page.Items))] {
			weight += 2 * answers.MemoryOf(&page.Items[i]) // as it is, and as the tenant sees it
			all = append(all, page.Items[i])
		}
		return page, len(page.Items), weight, nil
	})
	return all, version, more, err
}

// paged lists page by page. It stops when there are more than most objects, and reports whether there are. list
// gets how many are left, and returns how many the page has and the weight of what it keeps of them.
func (c *call) paged(ctx context.Context, o metav1.ListOptions, most int, list func(context.Context, metav1.ListOptions, int) (metav1.ListInterface, int, int64, error)) (version string, more bool, err error) {
	if !c.exists {
		return "", false, nil
	}
	o.Limit = pageSize
	c.budget.Pages()
	for left := most; ; {
		page, n, weight, err := list(ctx, o, left)
		if err == nil {
			err = c.budget.Keep(weight)
		}
		if err != nil {
			return "", false, c.unreachable(ctx, err)
		}
		if left -= n; left < 0 {
			return page.GetResourceVersion(), true, nil
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return page.GetResourceVersion(), false, nil
		}
	}
}

// locate returns the URL of a pod at the target.
func (c *call) locate(name string) *url.URL {
	return c.link.Server.JoinPath("api", "v1", "namespaces", c.Physical, "pods", name)
}

// refused returns the error of a response of a target for the tenant. The body is closed.
func (c *call) refused(ctx context.Context, resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, answers.MostText)) // what there is of it
	_ = resp.Body.Close()
	var s metav1.Status
	if json.Unmarshal(text, &s) != nil || s.Message == "" {
		s.Message = strings.TrimSpace(string(text))
	}
	klog.FromContext(ctx).V(2).Info("a physical cluster refuses a request for a pod", "cluster", c.workspace.compute, "target", c.target.Name, "code", resp.StatusCode, "err", s.Message)
	switch code := resp.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the physical cluster of Location %q does not let this server do that; ask an administrator of its compute workspace to allow it", c.Location))
	case code == http.StatusNotFound || code == http.StatusBadRequest || code == http.StatusConflict || code == http.StatusUnprocessableEntity:
		message := strings.ReplaceAll(shown.HideAddresses(s.Message), c.Physical, c.Namespace)
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: s.Reason, Message: message}}
	default:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the physical cluster of Location %q cannot reach the pod (status %d)", c.Location, code))
	}
}
