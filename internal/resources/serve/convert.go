package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/unforked/kcp/internal/resources/catalog"
)

// converts returns the resolver by which upstream's converter calls a function.
func converts(c converting) webhook.AuthenticationInfoResolverWrapper {
	return func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(string) (*rest.Config, error) { return webhookConfig(c), nil },
		}
	}
}

// converting answers conversion reviews, with a function, with rules or with a union.
type converting struct {
	convert catalog.Convert
	rules   *ruled
	union   *union
}

// begin returns a function that converts the objects of one call, in JSON. An object that is alone in
// a call may have been converted before.
func (c converting) begin() (convert func(text []byte, to string, alone bool) ([]byte, error), done func()) {
	switch {
	case c.union != nil:
		call := &unionCall{union: c.union, begun: map[*partReader]catalog.Convert{}}
		return call.convert, call.end
	case c.rules == nil:
		return func(text []byte, to string, _ bool) ([]byte, error) { return convertJSON(c.convert, text, to) }, func() {}
	}
	by, done := c.rules.begin()
	return func(text []byte, to string, alone bool) ([]byte, error) {
		one := func() ([]byte, error) { return convertJSON(by, text, to) }
		if alone {
			return c.rules.once(text, to, one)
		}
		return one()
	}, done
}

// RoundTrip implements [http.RoundTripper].
func (c converting) RoundTrip(req *http.Request) (*http.Response, error) {
	defer func() { _ = req.Body.Close() }() // a RoundTripper must close it
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
		return nil, fmt.Errorf("conversion review: %w", err)
	}
	answer := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	convert, done := c.begin()
	defer done()
	for _, raw := range review.Request.Objects {
		converted, err := convert(raw.Raw, review.Request.DesiredAPIVersion, len(review.Request.Objects) == 1)
		if err != nil {
			answer.ConvertedObjects, answer.Result = nil, metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		answer.ConvertedObjects = append(answer.ConvertedObjects, runtime.RawExtension{Raw: converted})
	}
	body, err := json.Marshal(&apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: answer})
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}, nil
}

// convertJSON converts one object in JSON.
func convertJSON(convert catalog.Convert, text []byte, to string) ([]byte, error) {
	var o unstructured.Unstructured
	if err := o.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	converted, err := convert(&o, to)
	if err != nil {
		return nil, err
	}
	return converted.MarshalJSON()
}
