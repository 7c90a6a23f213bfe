package archives

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/minio/minio-go/v7"
)

// ErrForeign means that another installation has its archive at the same place.
var ErrForeign = errors.New("another installation has its archive there")

// failed returns an error of an operation that names the bucket and what may be done.
func (b *Bucket) failed(operation string, err error) error {
	if err == nil {
		return nil
	}
	if remedy := b.remedy(err); remedy != "" {
		return fmt.Errorf("bucket %s: %s: %w; %s", b.location, operation, cause(err), remedy)
	}
	return fmt.Errorf("bucket %s: %s: %w", b.location, operation, cause(err))
}

// cause returns an error of the client with the code of the server's answer.
func cause(err error) error {
	var request *url.Error
	if errors.As(err, &request) { // whose text has the whole URL
		return request.Err
	}
	answer := minio.ToErrorResponse(err)
	if answer.Code == "" || answer.Code == answer.Message {
		return err
	}
	return fmt.Errorf("%s: %w", answer.Code, err)
}

// remedy says what may be done about an error.
func (b *Bucket) remedy(err error) string {
	answer := minio.ToErrorResponse(err)
	switch answer.Code {
	case minio.NoSuchBucket:
		return "create the bucket, or correct the setting archive"
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound", "ExpiredToken", "InvalidToken":
		return "correct the access key and its secret " + b.credentials()
	case minio.AccessDenied:
		return "let the credentials " + b.credentials() + " list the bucket, and get, put and delete objects below " +
			"the prefix"
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "IncorrectEndpoint", minio.InvalidRegion:
		return "correct the region and the endpoint in the setting archive"
	case "RequestTimeTooSkewed":
		return "correct the clock of this machine"
	case minio.NotImplemented:
		return "the server needs multipart uploads and conditional writes (If-None-Match)"
	}
	var network net.Error
	switch unknown, invalid, host := (x509.UnknownAuthorityError{}), (x509.CertificateInvalidError{}),
		(x509.HostnameError{}); {
	case errors.As(err, &unknown):
		return "give the certificate of the server's authority in archive-ca-file"
	case errors.As(err, &invalid), errors.As(err, &host):
		return "give the server a certificate that is valid for the endpoint in the setting archive"
	case errors.Is(err, errCredentials):
		return "correct the file of archive-credentials-file"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network),
		answer.StatusCode >= http.StatusInternalServerError:
		return "see whether " + b.location.host() + " works and can be reached: what is not archived stays in the " +
			"journal, and is tried again"
	}
	return ""
}

// credentials returns the words in remedies that say where the credentials are.
func (b *Bucket) credentials() string {
	if b.cfg.CredentialsFile != "" {
		return "in " + b.cfg.CredentialsFile + " (archive-credentials-file)"
	}
	return "in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or of the role of this machine, or name a file in " +
		"archive-credentials-file"
}

// missing reports whether the server answered that there is no such object.
func missing(err error) bool {
	answer := minio.ToErrorResponse(err)
	return answer.Code == minio.NoSuchKey || answer.Code == "NoSuchVersion"
}

// exists reports whether a conditional write was refused because of what is there, or of another write at the same
// time.
func exists(err error) bool {
	status := minio.ToErrorResponse(err).StatusCode
	return status == http.StatusPreconditionFailed || status == http.StatusConflict
}
