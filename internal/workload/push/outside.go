package push

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/physical"
)

// probeWithin is the timeout of an outside probe.
const probeWithin = 5 * time.Second

// A sign is the result of an outside probe of a physical cluster.
type sign int

const (
	unknown sign = iota // there is no answer
	up
	down
)

// Outside asks the probes of a physical cluster that does not answer, or whose agent does not report.
// It returns why, with the results of the probes.
func (w Workspace) Outside(ctx context.Context, probes []workload.SyncTargetProbe, why error) error {
	p := (*physical.Problem)(nil)
	if len(probes) == 0 || errors.As(why, &p) && p.Reason != workload.Unreachable {
		return why
	}
	signs, texts := make([]sign, len(probes)), make([]string, len(probes))
	var asked sync.WaitGroup
	for i, p := range probes {
		asked.Go(func() { signs[i], texts[i] = w.ask(ctx, p) })
	}
	asked.Wait()
	return told(why, signs, texts)
}

// told is the conclusion from outside probes: one that says that the cluster is alive outweighs the others,
// and one that says that it is down is not enough.
func told(why error, signs []sign, texts []string) error {
	count := map[sign]int{}
	for _, s := range signs {
		count[s]++
	}
	said := strings.Join(texts, "; ")
	switch {
	case count[up] > 0:
		return physical.Because(workload.AgentLost, fmt.Errorf("%w; but an outside probe says that the physical cluster lives, so nothing leaves it (%s)", why, said))
	case count[down] >= 2:
		return physical.Because(workload.DownByProbes, fmt.Errorf("%w; outside probes say that the physical cluster is down (%s)", why, said))
	}
	return physical.Because(workload.Unreachable, fmt.Errorf("%w; outside probes do not tell (%s)", why, said))
}

// ask requests the URL of a probe. The server calls only addresses that the compute workspace may call.
func (w Workspace) ask(ctx context.Context, p workload.SyncTargetProbe) (sign, string) {
	_, through, err := w.Server.EgressOwn(w.Name, p.CABundle, nil)
	if err != nil {
		return unknown, fmt.Sprintf("%s: %v", p.URL, err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return unknown, fmt.Sprintf("%s: %v", p.URL, err)
	}
	req.Close = true // a probe keeps no connection
	req.Header.Set("User-Agent", "kcp-probe")
	resp, err := through.RoundTrip(req) // follows no redirect
	if err != nil {
		return unknown, fmt.Sprintf("%s: no answer: %v", p.URL, err)
	}
	_ = resp.Body.Close() // the code is the answer
	text := fmt.Sprintf("%s: %d", p.URL, resp.StatusCode)
	if code := resp.StatusCode; code < 400 || code == http.StatusUnauthorized || code == http.StatusForbidden {
		return up, text
	}
	return down, text
}
