package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// client is one client with a connection of its own. Answers are not decoded:
// it shares the machine with the servers, and what it costs would be their loss.
type client struct {
	rest *rest.RESTClient
}

// newClient makes a client without rate limit. Its own dial function keeps
// client-go from sharing the connection of another client.
func newClient(config *rest.Config) (*client, error) {
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
	return &client{rest: r}, nil
}

// connect makes n clients that are connected, so that no handshake counts as a
// part of the first operation. The caller closes them.
func connect(ctx context.Context, config *rest.Config, n int) ([]*client, error) {
	var cs []*client
	for range n {
		c, err := newClient(config)
		if err == nil {
			cs = append(cs, c)
			_, err = c.call(ctx, http.MethodGet, "/readyz", "*/*", nil)
		}
		if err != nil {
			closeAll(cs)
			return nil, err
		}
	}
	return cs, nil
}

func closeAll(cs []*client) {
	for _, c := range cs {
		c.close()
	}
}

// close ends the client's connection.
func (c *client) close() {
	utilnet.CloseIdleConnectionsFor(c.rest.Client.Transport) // looks through the wrappers that add credentials
}

// call sends one request and returns the raw answer. Nothing is retried: a
// request that fails once has failed.
func (c *client) call(ctx context.Context, method, path, media string, body []byte) ([]byte, error) {
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

// post creates an object from JSON and decodes the answer into it.
func (c *client) post(ctx context.Context, path string, object any) error {
	b, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if b, err = c.call(ctx, http.MethodPost, path, jsonType, b); err != nil {
		return err
	}
	return json.Unmarshal(b, object)
}

// encoding is how config maps travel, equal for every subject.
type encoding struct {
	media  string
	encode func(runtime.Object) ([]byte, error)
}

func newEncoding(name string) (encoding, error) {
	switch name {
	case "json":
		return encoding{jsonType, func(o runtime.Object) ([]byte, error) { return json.Marshal(o) }}, nil
	case "protobuf":
		s := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
		return encoding{protobufType, func(o runtime.Object) ([]byte, error) { return runtime.Encode(s, o) }}, nil
	}
	return encoding{}, fmt.Errorf("encoding %q: want json or protobuf", name)
}

// configMap is the object of every operation: one value of the given size that
// begins with the given word, so that an update changes something.
func (e encoding) configMap(name, word string, size int) ([]byte, error) {
	value := word + strings.Repeat("x", max(0, size-len(word)))
	return e.encode(&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Data:       map[string]string{"value": value},
	})
}
