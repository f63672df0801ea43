package reach

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	apisv1alpha2 "github.com/unforked/kcp/apis/apis/v1alpha2"
	"github.com/unforked/kcp/internal/auth/authz"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/request/edge"
	"github.com/unforked/kcp/internal/sharing/exports"
)

const (
	// exportPage is the default and maximum number of exports per page. Each is read.
	exportPage = 100
	// exportTries is the maximum number of exports that are checked for a page.
	exportTries = 5_000
	// maxDescription is the maximum length of a description in bytes, and maxListed that of the
	// lists of one export.
	maxDescription = 1024
	maxListed      = 100
)

// An offer is an export with the path of its cluster.
type offer struct {
	place
	export string
}

func (o offer) compare(other offer) int {
	return cmp.Or(o.place.compare(other.place), strings.Compare(o.export, other.export))
}

// An exportMark is the continue token of a list of exports: the last one that the list has, or
// that was checked.
type exportMark struct {
	Path   cluster.Path `json:"p"`
	Name   cluster.Name `json:"c"`
	Export string       `json:"e"`
}

func (o offer) mark() exportMark { return exportMark{o.path, o.name, o.export} }

// encode returns the token. It is encrypted if it names an export that the user may not bind.
func (q *Queries) encode(m exportMark, hidden bool) (string, error) {
	text, err := json.Marshal(m)
	if err != nil || !hidden {
		return base64.RawURLEncoding.EncodeToString(text), err
	}
	return sealed + base64.RawURLEncoding.EncodeToString(q.seal.Seal(nil, nil, text, nil)), nil
}

// sealed begins the tokens that are encrypted. Base64 has no dot.
const sealed = "."

// decode returns the mark in a token.
func (q *Queries) decode(token string) (m exportMark, err error) {
	encoded, hidden := strings.CutPrefix(token, sealed)
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err == nil && hidden {
		text, err = q.seal.Open(nil, nil, text, nil)
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, apierrors.NewBadRequest("continue is not from a list of this server process; begin the list again without it")
	}
	return m, nil
}

// newSeal returns a cipher with a new key.
func newSeal() (cipher.AEAD, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// exports lists the APIExports that the user may bind, ordered by path and name. It answers as if
// there were no others.
func (q *Queries) exports(req *http.Request, u user.Info) (any, error) {
	limit, at, err := q.readExportPage(req.URL.Query())
	if err != nil {
		return nil, err
	}
	ctx := authz.Deep(q.Authorizer.Settle(req.Context())) // the user need not enter the cluster
	offers := q.offers(ctx, u)
	if at.Export != "" {
		i, found := slices.BinarySearchFunc(offers, offer{place{at.Name, at.Path}, at.Export}, offer.compare)
		if found {
			i++
		}
		offers = offers[i:]
	}
	list := &apisv1alpha2.BindableExportList{Items: []apisv1alpha2.BindableExport{}}
	list.SetGroupVersionKind(apisv1alpha2.GroupVersion.WithKind("BindableExportList"))
	last := -1 // the one that the list ends with
	for i, o := range offers {
		if len(list.Items) == limit || i == exportTries {
			if list.Continue, err = q.encode(offers[i-1].mark(), last != i-1); err != nil {
				return nil, err
			}
			break
		}
		if ctx.Err() != nil {
			return nil, apierrors.NewTimeoutError("the list took too long; ask for fewer exports at a time", 1)
		}
		item, err := q.bindable(ctx, o, u)
		if err != nil {
			return nil, err
		}
		if item != nil {
			last, list.Items = i, append(list.Items, *item)
		}
	}
	return list, nil
}

// offers returns a superset of the exports that u may bind, in order.
func (q *Queries) offers(ctx context.Context, u user.Info) []offer {
	var all []offer
	for _, p := range q.places(q.candidates(ctx, u)) {
		for _, e := range q.APIs.Exports.List(p.name, "") {
			if !e.Deleting {
				all = append(all, offer{p, e.Name})
			}
		}
	}
	slices.SortFunc(all, offer.compare)
	return all
}

// bindable returns an export as the list shows it, nil if u may not bind it.
func (q *Queries) bindable(ctx context.Context, o offer, u user.Info) (*apisv1alpha2.BindableExport, error) {
	gv := apisv1alpha2.GroupVersion
	if !q.Authorizer.Allows(ctx, o.name, authorizer.AttributesRecord{
		User: u, Verb: "bind", APIGroup: gv.Group, APIVersion: gv.Version, Resource: "apiexports", Name: o.export, ResourceRequest: true,
	}) {
		return nil, nil
	}
	e, err := q.APIs.Exports.Read(ctx, exports.Name{Cluster: o.name, Name: o.export})
	if err != nil || e == nil {
		return nil, err
	}
	out := &apisv1alpha2.BindableExport{Path: string(o.path), Name: o.export, Cluster: string(o.name), Description: e.Annotations[apisv1alpha2.DescriptionAnnotation]}
	if len(out.Description) > maxDescription {
		out.Description = strings.ToValidUTF8(out.Description[:maxDescription], "")
	}
	for _, r := range e.Spec.Resources[:min(len(e.Spec.Resources), maxListed)] {
		out.Resources = append(out.Resources, apisv1alpha2.BindableResource{Group: r.Group, Resource: r.Name, Versions: q.APIs.Exports.Versions(o.name, r)})
	}
	for _, c := range e.Spec.PermissionClaims[:min(len(e.Spec.PermissionClaims), maxListed)] {
		out.PermissionClaims = append(out.PermissionClaims, schema.GroupResource{Group: c.Group, Resource: c.Resource}.String())
	}
	return out, nil
}

func (q *Queries) readExportPage(query url.Values) (limit int, at exportMark, err error) {
	if limit, err = edge.PageLimit(query, exportPage, "exports"); err != nil {
		return 0, at, err
	}
	token := query.Get("continue")
	if token == "" {
		return limit, at, nil
	}
	at, err = q.decode(token)
	return limit, at, err
}
