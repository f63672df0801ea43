package pods

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/internal/request/fair"
	"github.com/unforked/kcp/internal/workload/answers"
)

// A target that does not answer takes no room, and one that does waits for it.
func TestAnswersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of := onePart()
		silent := make(chan struct{})
		p := answering(func(r *http.Request) *http.Response {
			<-silent
			return respond(http.StatusOK, "application/json", strings.NewReader(typicalPage(t, pageSize, false)))
		}, of)
		c, err := p.begin(t.Context(), of)
		if err != nil {
			t.Fatal(err)
		}
		defer c.end()
		listed := make(chan error, 1)
		list := func(ctx context.Context) {
			_, err := c.list(ctx, metav1.ListOptions{}, func([]corev1.Pod) (int64, error) { return 0, nil })
			listed <- err
		}
		go list(t.Context())
		synctest.Wait()
		full := p.results(of.workspace).Budget()
		if err := full.Reserve(t.Context(), heldAlone); err != nil {
			t.Fatal("a target that does not answer takes room")
		}
		close(silent)
		time.AfterFunc(time.Minute, full.End)
		start := time.Now()
		if err := <-listed; err != nil || time.Since(start) != time.Minute {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		full = p.results(of.workspace).Budget()
		if err := full.Reserve(t.Context(), heldAlone); err != nil {
			t.Fatal(err)
		}
		defer full.End()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go list(ctx)
		if err := <-listed; err == nil || !strings.Contains(err.Error(), "too much to answer") {
			t.Errorf("got %v", err)
		}
	})
}

// The weight of a list stays until its request has no use for it, and that of a part that fails does not.
func TestListsWeighUntilTheyAreSent(t *testing.T) {
	east := onePart()
	west := partOf(east.workspace, otherKey)
	east.workspace.parts = []*part{east, west}
	p := answering(func(r *http.Request) *http.Response {
		body := io.Reader(strings.NewReader(typicalPage(t, 10, strings.Contains(r.URL.Path, west.Physical))))
		if r.URL.Query().Has("continue") {
			body = strings.NewReader("{") // west fails after a page
		}
		return respond(http.StatusOK, "application/json", body)
	}, east, west)
	list, kept, failed := (&store{Pods: p}).merged(t.Context(), east.workspace, selects(nil))
	if len(list.Items) != 10 || len(failed) != 1 || failed[west] == nil {
		t.Errorf("%d pods, failed: %v", len(list.Items), failed)
	}
	weight := int64(0)
	for i := range list.Items {
		weight += answers.MemoryOf(&list.Items[i])
	}
	if kept.Kept() < weight || kept.Kept() > 2*weight || p.limits.weights.Held() != kept.Kept() {
		t.Errorf("%d bytes are held, and the list has %d", p.limits.weights.Held(), weight)
	}
	kept.End()
	if p.limits.weights.Held() != 0 || len(p.limits.used) > 0 {
		t.Errorf("left: %d, %v", p.limits.weights.Held(), p.limits.used)
	}
}

// A list weighs until the response to its request has been sent.
func TestListsWeighWhileTheyAreSent(t *testing.T) {
	of := onePart()
	of.workspace.parts = []*part{of}
	p := answering(func(*http.Request) *http.Response {
		return respond(http.StatusOK, "application/json", strings.NewReader(typicalPage(t, 10, false)))
	}, of)
	work := fair.New(fair.Limits{}).Begin()
	c, err := p.begin(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.list(t.Context(), metav1.ListOptions{}, func(found []corev1.Pod) (weight int64, err error) { return 1 << 20, nil })
	if err != nil {
		t.Fatal(err)
	}
	c.sent(fair.With(t.Context(), work))
	if n := p.limits.weights.Held(); n != 1<<20 || len(p.limits.used) > 0 {
		t.Errorf("%d bytes are held while the response is sent, %v", n, p.limits.used)
	}
	work.End()
	if n := p.limits.weights.Held(); n != 0 {
		t.Errorf("%d bytes are held after the response", n)
	}
}

// A tenant that has nothing else can list 5,000 usual pods in each of 5 physical clusters.
func TestRoomForTypicalPods(t *testing.T) {
	of := onePart()
	of.workspace.parts = []*part{of}
	page := typicalPage(t, pageSize, false)
	p := answering(func(*http.Request) *http.Response {
		return respond(http.StatusOK, "application/json", strings.NewReader(page))
	}, of)
	const room = 32 << 20 // for a page
	if bytes := len(page) * mostPods / pageSize; bytes > mostBytes {
		t.Errorf("%d pods have %d MiB", mostPods, bytes>>20)
	}
	list, kept, _ := (&store{Pods: p}).merged(t.Context(), of.workspace, selects(nil))
	defer kept.End()
	if len(list.Items) != pageSize {
		t.Fatalf("%d pods", len(list.Items))
	}
	if all := kept.Kept() * 5 * mostPods / pageSize; all+room > heldAlone {
		t.Errorf("a pod has %d bytes, and weighs %d: all weigh %d MiB", len(page)/pageSize, kept.Kept()/pageSize, all>>20)
	}
}

// typicalPage is a page of pods as a cluster has them.
func typicalPage(t *testing.T, n int, more bool) string {
	t.Helper()
	one, err := os.ReadFile("../answers/testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	next := ""
	if more {
		next = `,"continue":"more"`
	}
	return `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"` + next + `},"items":[` + strings.TrimSuffix(strings.Repeat(string(one)+",", n), ",") + `]}`
}
