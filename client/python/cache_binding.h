// The calls of Client about blocks of any session, for the binding of Client.
#pragma once

#include "client/client.h"
#include "client/python/binding.h"

namespace larder::python {

// The classes of questions and answers.
void BindCacheMessages(nb::module_& module);
// Adds the calls to the class Client.
void BindCacheCalls(nb::class_<Client>& cls);

}  // namespace larder::python
