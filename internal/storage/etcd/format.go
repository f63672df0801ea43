package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/version"
)

// layout is the version of the key layout and the value encoding that this package writes. It
// is also the oldest that this package can read.
const layout = 1

// A format describes the stored data, and the programs that can read it. It is stored under
// one key.
type format struct {
	Layout int `json:"layout"`
	// Reader is the lowest layout that a program must support to read the data.
	Reader int `json:"minimumReader"`
	// Kubernetes is the minor version that the data is encoded in.
	Kubernetes string `json:"kubernetes"`
	// Oldest is the oldest minor version that some data may still be encoded in; empty if it
	// equals Kubernetes.
	Oldest string `json:"oldestKubernetes,omitempty"`
}

// A Format accesses the description of the data below a prefix.
type Format struct {
	KV clientv3.KV
	// Prefix is the prefix of all keys.
	Prefix string
	// Key is the key of the description.
	Key string
	// Kubernetes is the minor version, such as "1.36", in which this program encodes data.
	Kubernetes string
}

// Check returns the current revision, and an error if this program cannot read the data. It
// writes the description of new data.
func (f Format) Check(ctx context.Context) (int64, error) {
	if _, err := version.ParseMajorMinor(f.Kubernetes); err != nil {
		return 0, fmt.Errorf("the Kubernetes version of this program, %q: %w", f.Kubernetes, err)
	}
	resp, err := f.KV.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(f.Key), "=", 0)).
		Then(clientv3.OpGet(f.Prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())).
		Else(clientv3.OpGet(f.Key)).Commit()
	if err != nil {
		return 0, err
	}
	read := resp.Responses[0].GetResponseRange()
	if resp.Succeeded {
		if len(read.Kvs) > 0 {
			return 0, fmt.Errorf("the data under %s was not written by this program (it holds %q and no %q); choose an empty directory or another --etcd-prefix", f.Prefix, read.Kvs[0].Key, f.Key)
		}
		return f.create(ctx)
	}
	theirs, err := parseFormat(f.Key, read.Kvs[0].Value)
	if err != nil {
		return 0, err
	}
	if err := theirs.readable(f.Kubernetes); err != nil {
		return 0, err
	}
	if theirs.Kubernetes != f.Kubernetes {
		theirs.Oldest, theirs.Kubernetes = cmp.Or(theirs.Oldest, theirs.Kubernetes), f.Kubernetes
		if err := f.put(ctx, theirs, read.Kvs[0].ModRevision); err != nil {
			return 0, err
		}
	}
	return resp.Header.Revision, nil
}

// parseFormat parses the description that is stored at a key.
func parseFormat(key string, description []byte) (format, error) {
	var d format
	if err := json.Unmarshal(description, &d); err != nil {
		return format{}, fmt.Errorf("the description of the stored data at %s is damaged: %w; restore a backup", key, err)
	}
	return d, nil
}

// readable returns an error if a program for a Kubernetes version cannot read the data.
func (d format) readable(kubernetes string) error {
	if d.Reader > layout || d.Layout < layout {
		return fmt.Errorf("the stored data has layout %d and needs a program that reads layout %d; this one reads layout %d: start the version of kcp that wrote it", d.Layout, d.Reader, layout)
	}
	for _, stored := range []string{d.Kubernetes, cmp.Or(d.Oldest, d.Kubernetes)} {
		if err := canRead(stored, kubernetes); err != nil {
			return err
		}
	}
	return nil
}

// create writes the description of new data. If another process has written one, create
// checks that.
func (f Format) create(ctx context.Context) (int64, error) {
	value, err := json.Marshal(format{Layout: layout, Reader: layout, Kubernetes: f.Kubernetes})
	if err != nil {
		return 0, err
	}
	put, err := f.KV.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(f.Key), "=", 0)).Then(clientv3.OpPut(f.Key, string(value))).Commit()
	if err != nil {
		return 0, err
	}
	if !put.Succeeded {
		return f.Check(ctx)
	}
	return put.Header.Revision, nil
}

// put replaces the description unless another process changed it after revision rev.
func (f Format) put(ctx context.Context, d format, rev int64) error {
	value, err := json.Marshal(d)
	if err != nil {
		return err
	}
	resp, err := f.KV.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(f.Key), "=", rev)).Then(clientv3.OpPut(f.Key, string(value))).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("describe the stored data at %s: another process changed it", f.Key)
	}
	return err
}

// Raise records that all data is encoded in the version of this program.
func (f Format) Raise(ctx context.Context) error {
	resp, err := f.KV.Get(ctx, f.Key)
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	d, err := parseFormat(f.Key, resp.Kvs[0].Value)
	if err != nil {
		return err
	}
	if d.Oldest == "" || d.Kubernetes != f.Kubernetes {
		return nil // recorded already, or a newer program has started
	}
	d.Oldest = ""
	return f.put(ctx, d, resp.Kvs[0].ModRevision)
}

// canRead returns an error unless a program of Kubernetes minor version mine can read data of
// version theirs: mine must be theirs or the next one.
func canRead(theirs, mine string) error {
	t, err := version.ParseMajorMinor(theirs)
	if err != nil {
		return fmt.Errorf("the stored data names the Kubernetes version %q: %w; restore a backup", theirs, err)
	}
	m, err := version.ParseMajorMinor(mine)
	if err != nil {
		return err
	}
	if m.LessThan(t) || m.Minor() > t.Minor()+1 {
		return fmt.Errorf("the stored data has the encoding of Kubernetes %s and this program that of %s; start a program for %s or for the next minor version", theirs, mine, theirs)
	}
	return nil
}
