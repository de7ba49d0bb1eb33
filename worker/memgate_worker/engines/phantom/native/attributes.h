// Answers to questions about the device by number, for the runtime and for the driver alike.
#pragma once

namespace memgate::phantom {

// Gives the value of a device attribute (DeviceAttribute in cuda_api.h). False: nothing here knows the answer.
bool device_attribute(int attribute, int* value);

}  // namespace memgate::phantom
