package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The container image has no shell and no root: the server is its only program.
const (
	user     = 65532
	userName = "65532:65532"
	homeDir  = "/var/lib/kcp" // with the data in .kcp, where "kcp kubectl" finds the kubeconfig
)

// image writes one OCI archive with an image for each Linux platform.
func (r *release) image(work string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	found := false
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		img, err := r.imageFor(filepath.Join(binaries(work, p), "kcp"), p)
		if err != nil {
			return err
		}
		found = true
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	}
	if !found {
		return nil
	}
	dir := filepath.Join(work, "oci")
	at, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	names := map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		"io.containerd.image.name":          "localhost/kcp:" + r.version, // Podman, Docker and containerd load it by this name
	}
	if err := at.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	var entries []entry
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			relative, _ := filepath.Rel(dir, file)
			entries = append(entries, entry{name: filepath.ToSlash(relative), file: file, mode: 0o644})
		}
		return err
	})
	if err != nil {
		return err
	}
	return create(filepath.Join(r.out, "kcp_"+r.version+"_oci.tar"), func(w io.Writer) error { return writeTar(w, entries, r.time) })
}

// imageFor returns the image for a platform.
func (r *release) imageFor(program string, p platform) (v1.Image, error) {
	var files bytes.Buffer
	if err := writeTar(&files, r.files(program), r.time); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "make dist", Created: v1.Time{Time: r.time}}})
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, configured(img, r, p))
}

// configured returns the configuration of an image.
func configured(img v1.Image, r *release, p platform) *v1.ConfigFile {
	config, err := img.ConfigFile()
	if err != nil {
		panic(err) // it was built in memory
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: userName, WorkingDir: homeDir, Env: []string{"PATH=/", "HOME=" + homeDir},
		Entrypoint: []string{"/kcp"}, Cmd: []string{"start", "--bind-address=0.0.0.0"},
		ExposedPorts: map[string]struct{}{"6443/tcp": {}}, Volumes: map[string]struct{}{homeDir: {}},
		StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "kcp",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return config
}

// files returns the content of the image.
func (r *release) files(program string) []entry {
	return []entry{
		{name: "kcp", file: program, mode: 0o555},
		{name: "LICENSE", file: filepath.Join(r.root, "LICENSE"), mode: 0o444},
		{name: "etc", dir: true, mode: 0o755},
		{name: "etc/passwd", content: []byte("kcp:x:65532:65532::" + homeDir + ":/sbin/nologin\n"), mode: 0o444},
		{name: "etc/group", content: []byte("kcp:x:65532:\n"), mode: 0o444},
		{name: "etc/ssl", dir: true, mode: 0o755},
		{name: "etc/ssl/certs", dir: true, mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", content: authorities(), mode: 0o444},
		{name: "tmp", dir: true, mode: 0o777 | os.ModeSticky},
		{name: "var", dir: true, mode: 0o755},
		{name: "var/lib", dir: true, mode: 0o755},
		{name: homeDir[1:], dir: true, mode: 0o700, owner: user},
	}
}

// authorities returns Mozilla's certificate authorities in PEM: the server calls webhooks
// and identity providers. They come from a module, so they do not depend on this machine.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil { // the authority has conditions that a PEM file cannot express
			continue
		}
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer never fails
	}
	return text.Bytes()
}
