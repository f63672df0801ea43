package backup

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Save copies a backup to a file, and checks it on the way. The file must not exist. After an
// error there is none. progress is called with the number of keys so far and in all.
func Save(from io.Reader, file string, progress func(keys, all int64)) (header Header, err error) {
	if _, err := os.Lstat(file); err == nil {
		return Header{}, fmt.Errorf("%s exists; choose another file", file)
	}
	partial := file + ".partial"
	out, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return Header{}, fmt.Errorf("%w; another backup is being made, or was interrupted: then delete the file", err)
	}
	if err != nil {
		return Header{}, err
	}
	r, err := NewReader(io.TeeReader(from, out))
	if err == nil {
		header = r.Header
		err = r.Check(func(keys int64) { progress(keys, header.Keys) })
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(partial, file)
	}
	if err != nil {
		return Header{}, errors.Join(err, os.Remove(partial))
	}
	return header, nil
}
