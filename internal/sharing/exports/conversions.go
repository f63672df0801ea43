package exports

import (
	"context"

	apisv1alpha1 "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/cluster"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

// conversions are the APIConversions of all clusters.
type conversions struct {
	*feed.Table[conversion]
}

// A conversion is the rules of an APIConversion at a revision.
type conversion struct {
	rules    *catalog.Rules
	revision int64
}

func newConversions(f *feed.Feed) *conversions {
	return &conversions{feed.NewEventTable(f, ConversionResource(), func(e feed.Event) (conversion, error) {
		var c apisv1alpha1.APIConversion
		if err := e.Unmarshal(context.Background(), &c); err != nil {
			return conversion{}, err
		}
		rules, err := catalog.NewRules(&c.Spec)
		return conversion{rules, e.Revision}, err
	})}
}

// Converted returns how the objects of a schema in cluster c are served, and the evidence for it.
func (x *Exports) Converted(c cluster.Name, schema string, content *catalog.Content) (*catalog.Content, []catalog.Evidence) {
	if !content.Convertible() {
		return content, nil
	}
	found, ok := x.conversions.Get(c, "", schema)
	if ok {
		content = found.rules.Of(content)
	}
	return content, []catalog.Evidence{{Key: ConversionResource().Key(c, "", schema), Revision: found.revision}}
}

// OnConversion makes x call f with the cluster of every APIConversion that changes. f must not
// block. Call it before the change feed starts.
func (x *Exports) OnConversion(f func(cluster.Name)) {
	x.conversions.Subscribe(func(k keys.Key) { f(k.Cluster) })
}
