package store

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage"

	"github.com/unforked/kcp/internal/etcdtest"
)

// outage reports whether err is an answer that tells clients to try again.
func outage(err error) bool {
	return apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)
}

// A server that hangs, follower or leader, costs requests time and loses nothing: they
// are answered by the others, or told to try again.
func TestServerHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for what takes a while: connections that hang")
	}
	t.Parallel()
	etcd, all := several(t, 1, etcdtest.Options{Members: 3})
	s := all[0]
	cm := configMapsOf(t, s)
	startSpines(t, s)
	create(t, s, "c1")
	acknowledged, n := map[string]bool{}, 0
	write := func() error {
		n++
		name := fmt.Sprint("x", n)
		ctx, cancel := context.WithTimeout(in("c1"), patience)
		defer cancel()
		err := cm.Create(ctx, cmRoot+"/ns/"+name, configMap("ns", name, ""), nil, 0)
		if err == nil {
			acknowledged[name] = true
		} else if !outage(err) {
			t.Errorf("write %d: %v", n, err)
		}
		return err
	}
	for i, m := range etcd.Members { // one of them leads
		m.Hang()
		for good := 0; good < 5; {
			if write() == nil {
				good++
			}
		}
		m.Resume()
		var list corev1.ConfigMapList
		if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil {
			t.Fatalf("list after member %d hung: %v", i, err)
		}
		found := map[string]bool{}
		for _, o := range list.Items {
			found[o.Name] = true
		}
		for name := range acknowledged {
			if !found[name] {
				t.Errorf("%s was acknowledged, and is gone after member %d hung", name, i)
			}
		}
	}
}

// When etcd is away requests fail in bounded time and watches wait; when it is back all
// of it goes on, without a gap.
func TestEtcdAway(t *testing.T) {
	etcd, all := several(t, 2, etcdtest.Options{})
	var configs []storage.Interface
	for _, s := range all {
		configs = append(configs, configMapsOf(t, s))
	}
	startSpines(t, all...)
	create(t, all[0], "c1")
	w, err := configs[1].Watch(in("c1"), cmRoot, everything("0"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/before", configMap("ns", "before", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	etcd.Kill()
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/lost", configMap("ns", "lost", ""), nil, 0); !outage(err) {
		t.Errorf("create: %v", err)
	}
	if err := configs[0].Get(in("c1"), cmRoot+"/ns/before", storage.GetOptions{}, &corev1.ConfigMap{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("get: %v", err)
	}
	if err := configs[0].GetList(in("c1"), cmRoot, everything(""), &corev1.ConfigMapList{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("list: %v", err)
	}
	if err := all[0].Reachable(t.Context()); err == nil {
		t.Error("it says that etcd answers")
	}
	ctx := WithOutage(t.Context())
	if all[1].Spine().Fresh(ctx) || Outage(ctx) == nil {
		t.Errorf("evidence is called fresh; outage %v", Outage(ctx))
	}
	etcd.Start()
	reconnected(t, all[0])
	if err := configs[0].Create(in("c1"), cmRoot+"/ns/after", configMap("ns", "after", ""), nil, 0); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for len(seen) < 2 {
		select {
		case e := <-w.ResultChan():
			if o, ok := bare(e.Object).(*corev1.ConfigMap); ok {
				seen = append(seen, o.Name)
			} else {
				t.Fatalf("the watch got %v", e)
			}
		case <-time.After(patience):
			t.Fatalf("the watch got %v and no more", seen)
		}
	}
	if strings.Join(seen, " ") != "before after" {
		t.Errorf("the watch got %v", seen)
	}
	if !all[1].Spine().Fresh(t.Context()) {
		t.Error("evidence is not fresh")
	}
}

// reconnected returns when etcd, which is back, has been noticed.
func reconnected(t *testing.T, s *Store) {
	t.Helper()
	for s.Reachable(t.Context()) != nil && t.Context().Err() == nil { // it takes its time between attempts
	}
}

// An etcd that is full refuses what makes it fuller with 507, and serves reads and
// deletes; after it was compacted and defragmented writes go on.
func TestFull(t *testing.T) {
	etcd, all := several(t, 1, etcdtest.Options{Quota: 16 << 20})
	s := all[0]
	cm := configMapsOf(t, s)
	startSpines(t, s)
	create(t, s, "c1")
	var err error
	big, n := strings.Repeat("x", 500_000), 0
	for ; err == nil && n < 100; n++ {
		name := fmt.Sprint("big", n)
		err = cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, big), nil, 0)
	}
	if code := status(err); code != 507 {
		t.Fatalf("after %d objects: %d, %v", n, code, err)
	}
	if _, err := s.RawClient().Put(t.Context(), "/elsewhere", strings.Repeat(big, 6)); err != nil {
		t.Log(err) // an other program fills the rest
	}
	var list corev1.ConfigMapList
	if err := cm.GetList(in("c1"), cmRoot, everything(""), &list); err != nil || len(list.Items) != n-1 && len(list.Items) != n { // the one that made it full may be there
		t.Errorf("list of %d after %d writes: %v", len(list.Items), n, err)
	}
	for _, o := range list.Items {
		if err := cm.Delete(in("c1"), cmRoot+"/ns/"+o.Name, &corev1.ConfigMap{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	now, err := s.newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().Compact(t.Context(), now, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().Defragment(t.Context(), etcd.Members[0].URL()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RawClient().AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	again := func() error {
		return cm.Create(in("c1"), cmRoot+"/ns/again", configMap("ns", "again", big), nil, 0)
	}
	for err = again(); status(err) == 507; err = again() { // until it has been noticed
	}
	if err != nil {
		t.Errorf("when there is room again: %v", err)
	}
}

// A process whose lease is lost, as when it hung, changes nothing any more.
func TestLostLease(t *testing.T) {
	_, all := several(t, 2, etcdtest.Options{})
	for _, s := range all {
		configMapsOf(t, s)
	}
	startSpines(t, all...)
	create(t, all[0], "c1")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	terms := make(chan context.Context)
	lead := func(s *Store) {
		running.Go(func() {
			s.Lead(ctx, func(term context.Context) {
				select {
				case terms <- term:
					<-term.Done()
				case <-ctx.Done():
				}
			})
		})
	}
	lead(all[0])
	first := <-terms
	put := func(s *Store, term context.Context, name string) error {
		_, err := s.Commit(context.WithoutCancel(term), []Write{{Resource: NativeResource(configMaps), Cluster: "c1", Object: configMap("ns", name, "")}})
		return err
	}
	if err := put(all[0], first, "a"); err != nil {
		t.Fatal(err)
	}
	lead(all[1])
	held, err := all[0].RawClient().Get(t.Context(), all[0].leaseKey())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].RawClient().Revoke(t.Context(), clientv3.LeaseID(held.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if err := put(all[0], first, "b"); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a write after the lease was lost: %v", err)
	}
	<-first.Done() // it hears of it
	second := <-terms
	if err := put(all[1], second, "c"); err != nil {
		t.Error(err)
	}
	if err := put(all[0], first, "d"); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a write in an old term: %v", err)
	}
}

// An etcd that was restored from a backup is noticed: a store that knew a later state
// says so, and the next one answers 410 to watches from there.
func TestRestored(t *testing.T) {
	etcd, all := several(t, 1, etcdtest.Options{})
	s := all[0]
	cm := configMapsOf(t, s)
	startSpines(t, s)
	create(t, s, "c1")
	etcd.Kill()
	backup := etcd.Members[0].Backup()
	etcd.Start()
	reconnected(t, s)
	var last corev1.ConfigMap
	for i := range 5 {
		name := fmt.Sprint("x", i)
		if err := cm.Create(in("c1"), cmRoot+"/ns/"+name, configMap("ns", name, ""), &last, 0); err != nil {
			t.Fatal(err)
		}
	}
	etcd.Kill()
	etcd.Members[0].Restore(backup)
	etcd.Start()
	for list := new(corev1.ConfigMapList); t.Context().Err() == nil; {
		if err := cm.GetList(in("c1"), cmRoot, everything(""), list); err == nil {
			t.Fatal("a list from before the restore")
		}
		select {
		case err := <-s.Lost():
			if !strings.Contains(err.Error(), "restored") {
				t.Error(err)
			}
			s.Close()
			next := outside(t, Etcd{Servers: etcd.Servers()})
			cm := configMapsOf(t, next)
			startSpines(t, next)
			if _, err := cm.Watch(in("c1"), cmRoot, everything(last.ResourceVersion)); !apierrors.IsResourceExpired(err) {
				t.Errorf("a watch from the future: %v", err)
			}
			return
		default: // etcd is not back yet
		}
	}
}

// Without the right authority, certificate or password there is an error of one line that says what
// to look at; with them there is a store.
func TestSecured(t *testing.T) {
	dir := t.TempDir()
	ca, server, client, stranger := authority(t, dir, "ca"), "server", "client", authority(t, dir, "stranger")
	ca.issue(server)
	ca.issue(client)
	stranger.issue("impostor")
	file := func(name string) string { return filepath.Join(dir, name) }
	etcd := etcdtest.Start(t, etcdtest.Options{CA: file("ca.crt"), Cert: file("server.crt"), Key: file("server.key")})
	good := Etcd{Servers: etcd.Servers(), CAFile: file("ca.crt"), CertFile: file("client.crt"), KeyFile: file("client.key")}
	for name, spoil := range map[string]func(*Etcd){
		"another authority":   func(e *Etcd) { e.CAFile = file("stranger.crt") },
		"no certificate":      func(e *Etcd) { e.CertFile, e.KeyFile = "", "" },
		"another certificate": func(e *Etcd) { e.CertFile, e.KeyFile = file("impostor.crt"), file("impostor.key") },
	} {
		bad := good
		spoil(&bad)
		refusedBy(t, name, bad, "no secure connection", "--etcd-cafile", "--etcd-certfile")
	}
	s := outside(t, good)
	admin := s.RawClient()
	// Its own client has no part in who may do what.
	for _, err := range []error{
		second(admin.UserAdd(t.Context(), "root", "secret")), second(admin.UserGrantRole(t.Context(), "root", "root")),
		second(admin.AuthEnable(t.Context())),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	refusedBy(t, "wrong password", with(good, "root", "guessed"), "does not let the server in", "--etcd-username")
	refusedBy(t, "unknown user", with(good, "nobody", "secret"), "does not let the server in", "--etcd-username")
	outside(t, with(good, "root", "secret"))
}

func second[T any](_ T, err error) error { return err }

func with(e Etcd, user, password string) Etcd {
	e.Username, e.Password = user, password
	return e
}

func refusedBy(t *testing.T, name string, e Etcd, says ...string) {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), Version: "1.36", Etcd: e})
	if err == nil {
		s.Close()
		t.Errorf("%s is accepted", name)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q", name, err, text)
		}
	}
}

// An issuer of certificates keeps them in files in dir.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func authority(t *testing.T, dir, name string) *issuer {
	t.Helper()
	i := &issuer{t: t, dir: dir}
	i.cert, i.key = i.make(name, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return i
}

func (i *issuer) issue(name string) {
	i.t.Helper()
	i.make(name, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (i *issuer) make(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	i.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := i.cert, i.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		i.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		i.t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(i.dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			i.t.Fatal(err)
		}
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		i.t.Fatal(err)
	}
	return made, key
}
