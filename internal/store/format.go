package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/version"
)

// layout is the version of the key layout and the encoding of values that this
// package writes, and the oldest that can read it.
const layout = 1

// A format tells which programs can read the data. It is stored once.
type format struct {
	Layout int `json:"layout"`
	// Reader is the lowest layout whose programs can read the data.
	Reader int `json:"minimumReader"`
	// Kubernetes is the minor version whose storage encodings are in use.
	Kubernetes string `json:"kubernetes"`
	// Oldest is the oldest minor version in whose encodings something may still be
	// stored; empty if that is Kubernetes.
	Oldest string `json:"oldestKubernetes,omitempty"`
}

func (s *Store) formatKey() string { return s.prefix + "/" + string(System) + "/meta" }

// checkFormat refuses data that this program cannot read, marks new data, and
// returns the current revision.
func (s *Store) checkFormat(ctx context.Context, kubernetes string) (int64, error) {
	if _, err := version.ParseMajorMinor(kubernetes); err != nil {
		return 0, fmt.Errorf("the Kubernetes version of this program, %q: %w", kubernetes, err)
	}
	key := s.formatKey()
	mine := format{Layout: layout, Reader: layout, Kubernetes: kubernetes}
	value, err := json.Marshal(mine)
	if err != nil {
		return 0, err
	}
	kv := s.backend.client
	resp, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpGet(s.prefix+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return 0, err
	}
	read := resp.Responses[0].GetResponseRange()
	if resp.Succeeded {
		if len(read.Kvs) > 0 {
			return 0, fmt.Errorf("the data under %s was not written by this program (it holds %q and no %q); choose an empty directory or another --etcd-prefix", s.prefix, read.Kvs[0].Key, key)
		}
		put, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, string(value))).Commit()
		if err == nil && !put.Succeeded {
			return s.checkFormat(ctx, kubernetes) // another program has begun at the same time
		}
		if err != nil {
			return 0, err
		}
		return put.Header.Revision, nil
	}
	var theirs format
	if err := json.Unmarshal(read.Kvs[0].Value, &theirs); err != nil {
		return 0, fmt.Errorf("the description of the stored data at %s is damaged: %w; restore a backup", key, err)
	}
	if theirs.Reader > layout || theirs.Layout < layout {
		return 0, fmt.Errorf("the stored data has layout %d and needs a program that reads layout %d; this one reads layout %d: start the version of kcp that wrote it", theirs.Layout, theirs.Reader, layout)
	}
	for _, stored := range []string{theirs.Kubernetes, cmp.Or(theirs.Oldest, theirs.Kubernetes)} {
		if err := canRead(stored, kubernetes); err != nil {
			return 0, err
		}
	}
	if theirs.Kubernetes != kubernetes {
		theirs.Oldest, theirs.Kubernetes = cmp.Or(theirs.Oldest, theirs.Kubernetes), kubernetes
		if err := s.putFormat(ctx, theirs, read.Kvs[0].ModRevision); err != nil {
			return 0, err
		}
	}
	return resp.Header.Revision, nil
}

// putFormat describes the data anew if nobody else did since revision rev.
func (s *Store) putFormat(ctx context.Context, f format, rev int64) error {
	value, err := json.Marshal(f)
	if err != nil {
		return err
	}
	key := s.formatKey()
	resp, err := s.backend.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).Then(clientv3.OpPut(key, string(value))).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("describe the stored data at %s: %w", key, ErrChanged)
	}
	return err
}

// raiseFormat notes that everything is stored in the encodings of this program.
func (s *Store) raiseFormat(ctx context.Context) error {
	resp, err := s.backend.client.Get(ctx, s.formatKey())
	if err != nil || len(resp.Kvs) == 0 {
		return err
	}
	var f format
	if err := json.Unmarshal(resp.Kvs[0].Value, &f); err != nil {
		return err
	}
	if f.Oldest == "" || f.Kubernetes != s.version {
		return nil // it says so already, or a newer program has begun
	}
	f.Oldest = ""
	return s.putFormat(ctx, f, resp.Kvs[0].ModRevision)
}

// canRead reports whether a program on Kubernetes minor mine can take over data
// of minor theirs: the same or the next.
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
		return fmt.Errorf("the stored data is of Kubernetes %s and this program is of %s; start one of %s or of the minor version after it", theirs, mine, theirs)
	}
	return nil
}
