package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// JSON is the media type of most requests.
const JSON = "application/json"

// Client is one client with a connection of its own. It does not decode answers, because its
// processor time would be missing for the servers on the same machine.
type Client struct {
	rest *rest.RESTClient
}

// NewClient returns a client without rate limit. Its own dial function keeps
// client-go from sharing the connection of another client.
func NewClient(config *rest.Config) (*Client, error) {
	c := rest.CopyConfig(config)
	c.QPS = -1
	c.WarningHandler = rest.NoWarnings{}
	c.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	c.GroupVersion = &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	r, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Client{rest: r}, nil
}

// Connect returns n connected clients, so that the first operation includes no handshake. The
// caller must close them.
func Connect(ctx context.Context, config *rest.Config, n int) ([]*Client, error) {
	var cs []*Client
	for range n {
		c, err := NewClient(config)
		if err == nil {
			cs = append(cs, c)
			_, err = c.Call(ctx, http.MethodGet, "/readyz", "*/*", nil)
		}
		if err != nil {
			CloseAll(cs)
			return nil, err
		}
	}
	return cs, nil
}

// CloseAll ends the connections of clients.
func CloseAll(cs []*Client) {
	for _, c := range cs {
		c.Close()
	}
}

// Close ends the client's connection.
func (c *Client) Close() {
	utilnet.CloseIdleConnectionsFor(c.rest.Client.Transport) // looks through the wrappers that add credentials
}

// Call sends one request and returns the raw answer. It does not retry.
func (c *Client) Call(ctx context.Context, method, path, media string, body []byte) ([]byte, error) {
	r := c.rest.Verb(method).RequestURI(path).MaxRetries(0).SetHeader("Accept", media)
	if method == http.MethodPatch {
		media = string(types.MergePatchType)
	}
	if body != nil {
		r = r.SetHeader("Content-Type", media).Body(body)
	}
	b, err := r.Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return b, nil
}

// Stream sends a GET and returns the body of the answer, such as the events of a watch. The
// caller must close it.
func (c *Client) Stream(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.rest.Get().RequestURI(path).MaxRetries(0).SetHeader("Accept", JSON).Stream(ctx)
}

// Post creates an object from JSON and decodes the answer into it.
func (c *Client) Post(ctx context.Context, path string, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if b, err = c.Call(ctx, http.MethodPost, path, JSON, b); err != nil {
		return err
	}
	return json.Unmarshal(b, object)
}

// A Workspace has the fields of a Workspace that a client needs.
type Workspace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		URL string `json:"URL,omitempty"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase,omitempty"`
	} `json:"status"`
}

const (
	// WorkspacesPath is the path of the workspaces in a logical cluster.
	WorkspacesPath = "/apis/tenancy.kcp.io/v1alpha1/workspaces"
	// RootWorkspaces is the URL path of the workspaces below root.
	RootWorkspaces = "/clusters/root" + WorkspacesPath
)

// MakeWorkspace creates a workspace in a collection, and returns the path of its URL when it is
// Ready.
func MakeWorkspace(ctx context.Context, c *Client, in, name string) (string, error) {
	w := Workspace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "tenancy.kcp.io/v1alpha1", Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	if err := c.Post(ctx, in, &w); err != nil {
		return "", err
	}
	return w.await(ctx, c, in+"/"+name)
}

// Home returns the URL path of the client's home workspace, and creates it if necessary.
func Home(ctx context.Context, c *Client) (string, error) {
	var w Workspace
	return w.await(ctx, c, RootWorkspaces+"/~")
}

// await returns the path of a workspace's URL when it is Ready.
func (w *Workspace) await(ctx context.Context, c *Client, at string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("not Ready after a minute"))
	defer cancel()
	for w.Status.Phase != "Ready" {
		if w.Status.Phase != "" {
			if err := Pause(ctx, 2*time.Millisecond); err != nil {
				return "", fmt.Errorf("workspace %s in phase %q: %w", at, w.Status.Phase, err)
			}
		}
		b, err := c.Call(ctx, http.MethodGet, at, JSON, nil)
		if err != nil {
			return "", err
		}
		if err := json.Unmarshal(b, w); err != nil {
			return "", fmt.Errorf("workspace %s: %w", at, err)
		}
	}
	u, err := url.Parse(w.Spec.URL)
	if err != nil || u.Path == "" {
		return "", fmt.Errorf("workspace %s is Ready, but its URL is %q", at, w.Spec.URL)
	}
	return u.Path, nil
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
